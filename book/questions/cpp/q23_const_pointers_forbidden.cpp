#include <utility>

int main() {
    const int one = 1, two = 2;
    const int* const a = &one;
    const int* const b = &two;
    std::swap(a, b);  // error: no matching function for call to .swap
}
