int main() {
    int x = 0;
    int* plain = &x;
    const int* view = plain;  // adding const one level down is free
    const int** deeper = nullptr;
    deeper = &plain;  // error: (invalid conversion from|assigning to 'const int \*\*' from)
    return *view + (deeper != nullptr);
}
