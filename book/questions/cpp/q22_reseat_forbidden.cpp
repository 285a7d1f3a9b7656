int main() {
    int x = 0, y = 0;
    int* const p = &x;
    *p = 5;  // allowed: the int is writable
    p = &y;  // error: (assignment of read-only variable|cannot assign to variable 'p' with const-qualified type)
}
