// sizeof asks the type of the expression, not the object: through a pointer to the base it is the base's size.
struct Base {
    virtual ~Base() = default;
    int value = 0;
};
struct Derived : Base {
    double more[4] = {};
};
inline Derived object;
inline Base* pointer = &object;
static_assert(sizeof(*pointer) == sizeof(Base));
static_assert(sizeof(Derived) > sizeof(Base));
