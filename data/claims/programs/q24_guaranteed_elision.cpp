// Since C++17 returning an unnamed new object makes it in its final place: no constructor is needed for the return.
// To be refused as C++14.
struct Pinned {
    int value;
    constexpr explicit Pinned(int v) : value(v) {}
    Pinned(const Pinned&) = delete;
    Pinned(Pinned&&) = delete;
};
constexpr Pinned make() { return Pinned(5); }  // refused here
#if __cplusplus >= 201703L
constexpr Pinned made = make();
static_assert(made.value == 5, "");
#endif
