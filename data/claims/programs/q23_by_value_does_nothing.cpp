// A swap that takes the pointers by value exchanges its own copies; by reference to pointer it exchanges the caller's.
constexpr void by_value(const int* a, const int* b) {
    const int* kept = a;
    a = b;
    b = kept;
}
constexpr void by_reference(const int*& a, const int*& b) {
    const int* kept = a;
    a = b;
    b = kept;
}
constexpr int one = 1, two = 2;
constexpr int after(void (*exchange)(const int*, const int*)) {
    const int *a = &one, *b = &two;
    exchange(a, b);
    return 10 * *a + *b;
}
constexpr int after_reference() {
    const int *a = &one, *b = &two;
    by_reference(a, b);
    return 10 * *a + *b;
}
static_assert(after(by_value) == 12);
static_assert(after_reference() == 21);
