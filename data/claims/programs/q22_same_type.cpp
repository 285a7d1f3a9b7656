// Both spellings name one type; a pointer to const can be pointed elsewhere, only a write through it is refused.
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
static_assert(same<const int*, int const*>);
static_assert(!same<const int*, int* const>);

constexpr int read_after_moving() {
    int first = 1, second = 2;
    const int* left = &first;
    int const* right = &second;
    left = &second;
    right = &first;
    return 10 * *left + *right;
}
static_assert(read_after_moving() == 21);

#ifdef FORBIDDEN
constexpr void write_through(const int* left) { *left = 3; }  // refused here
#endif
