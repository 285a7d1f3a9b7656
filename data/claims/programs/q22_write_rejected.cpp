// A write through a pointer to const is refused, in either spelling; through a pointer to int it is not.
constexpr int write_through(int* target) { return *target = 3; }
constexpr int written() {
    int value = 1;
    write_through(&value);
    return value;
}
static_assert(written() == 3);

#if FORBIDDEN == 1
void write_through_left(const int* left) { *left = 3; }  // refused here 1
#elif FORBIDDEN == 2
void write_through_right(int const* right) { *right = 3; }  // refused here 2
#endif
