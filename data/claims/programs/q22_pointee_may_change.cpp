// The const is in the pointer's type: the int itself may change through its own name.
constexpr int seen_through_the_pointer() {
    int value = 1;
    const int* view = &value;
    value = 42;
    return *view;
}
static_assert(seen_through_the_pointer() == 42);
