struct T {
    T() {}
    T(T other) {}  // error: (invalid constructor|copy constructor must pass its first argument by reference)
};
