// int* const fixes the pointer and leaves the int writable; const int* const fixes both.
constexpr int through_a_const_pointer() {
    int value = 1;
    int* const fixed = &value;
    *fixed = 7;
    return value;
}
static_assert(through_a_const_pointer() == 7);

#if FORBIDDEN == 1
void move_it(int* const fixed, int* other) { fixed = other; }  // refused here 1
#elif FORBIDDEN == 2
void move_both(const int* const fixed, int* other) { fixed = other; }  // refused here 2
#elif FORBIDDEN == 3
void write_both(const int* const fixed) { *fixed = 7; }  // refused here 3
#endif
