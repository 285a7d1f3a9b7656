// The addresses change places; the two constants stay what and where they are.
#include <cstdio>
#include <utility>

void by_value(const int* a, const int* b) { std::swap(a, b); }
void by_reference(const int*& a, const int*& b) { std::swap(a, b); }

int main() {
    const int one = 1, two = 2;
    const int *a = &one, *b = &two;

    by_value(a, b);
    std::printf("by value:      *a = %d, *b = %d\n", *a, *b);
    by_reference(a, b);
    std::printf("by reference:  *a = %d, *b = %d\n", *a, *b);
    std::swap(a, b);
    std::printf("at the call:   *a = %d, *b = %d\n", *a, *b);
    std::printf("the constants: one = %d, two = %d\n", one, two);
}
