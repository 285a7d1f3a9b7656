// The first line of the sum trick, with two ordinary ints.
#include <climits>
#include <cstdio>

void by_sum(int& a, int& b) {
    a = a + b;  // stops: signed integer overflow: 2147483647 \+ 1 cannot be represented in type 'int'
    b = a - b;
    a = a - b;
}

int main() {
    int a = INT_MAX, b = 1;
    by_sum(a, b);
    std::printf("%d %d\n", a, b);
}
