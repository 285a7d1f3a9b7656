int main() {
    int x = 0;
    const int* p = &x;
    *p = 1;  // error: (assignment of read-only location|read-only variable is not assignable)
}
