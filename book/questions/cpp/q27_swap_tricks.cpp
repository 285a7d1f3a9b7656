// Both tricks on two objects, on one object, and at the extremes.
#include <climits>
#include <cstdio>
#include <utility>

void by_sum(int& a, int& b) {
    a = a + b;
    b = a - b;
    a = a - b;
}
void by_xor(int& a, int& b) {
    a ^= b;
    b ^= a;
    a ^= b;
}

int main() {
    int a = 3, b = 8;
    by_sum(a, b);
    std::printf("sum, two objects:   %d %d\n", a, b);
    by_xor(a, b);
    std::printf("xor, two objects:   %d %d\n", a, b);
    int x = 7;
    by_sum(x, x);
    std::printf("sum, one object:    %d\n", x);
    x = 7;
    by_xor(x, x);
    std::printf("xor, one object:    %d\n", x);
    x = 7;
    std::swap(x, x);
    std::printf("std::swap, the same: %d\n", x);
    a = INT_MAX, b = INT_MIN;
    by_xor(a, b);
    std::printf("xor at the extremes: %s\n", a == INT_MIN && b == INT_MAX ? "swapped" : "wrong");
}
