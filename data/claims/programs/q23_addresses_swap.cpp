// std::swap on two pointers to const exchanges the addresses; the const objects stay what they are.
#include <utility>

constexpr int one = 1, two = 2;
constexpr bool crossed() {
    const int *a = &one, *b = &two;
    std::swap(a, b);
    return a == &two && b == &one && *a == 2 && *b == 1 && one == 1 && two == 2;
}
static_assert(crossed());
