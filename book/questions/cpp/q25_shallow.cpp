// The copy the compiler writes for a raw owner: one buffer, two owners, freed twice.
#include <cstdio>

struct Owner {
    int* data;
    explicit Owner(int n) : data(new int[n]{}) {}
    ~Owner() { delete[] data; }
    // no copy constructor, no assignment: the pointer is copied
};

int main() {
    Owner a(2);
    Owner b = a;
    b.data[0] = 99;
    std::printf("written through b, read through a: %d\n", a.data[0]);
    std::fflush(stdout);
}  // stops: AddressSanitizer: attempting double-free
