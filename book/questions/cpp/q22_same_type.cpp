// const int* and int const* are one type; int* const is another.
#include <cstdio>
#include <type_traits>

int main() {
    static_assert(std::is_same_v<const int*, int const*>);
    static_assert(!std::is_same_v<const int*, int* const>);
    static_assert(!std::is_const_v<const int*>);  // the pointer itself may change
    static_assert(std::is_const_v<int* const>);   // here it may not

    int left = 10, right = 20;
    const int* a = &left;
    int const* b = &right;
    a = &right;  // both may point elsewhere
    b = &left;
    left = 30;  // the object was never const: its own name may write
    std::printf("*a = %d, *b = %d\n", *a, *b);
}
