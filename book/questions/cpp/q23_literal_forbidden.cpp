int main() {
    const int* a = nullptr;
    a = &1;  // error: (lvalue required as unary|cannot take the address of an rvalue)
    return a != nullptr;
}
