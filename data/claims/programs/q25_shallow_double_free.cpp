// A defaulted copy of an owning pointer shares the buffer: a write shows in both, and both destructors delete it.
// The compiler runs the destructors in a constant expression, where a second delete is an error.
struct Shallow {
    int* data;
    bool owner;
    constexpr explicit Shallow(int value) : data(new int(value)), owner(true) {}
    constexpr Shallow(const Shallow&) = default;
    constexpr ~Shallow() {
        if (owner) delete data;
    }
};
constexpr int seen_in_the_first(bool both_delete) {
    Shallow first(1);
    Shallow second = first;
    second.owner = both_delete;
    *second.data = 9;
    return *first.data;
}
static_assert(seen_in_the_first(false) == 9);

#ifdef FORBIDDEN
static_assert(seen_in_the_first(true) == 9);  // refused here
#endif
