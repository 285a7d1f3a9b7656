// sizeof looks at the type it is written with; the table is one for each dynamic type.
#include <cstdint>
#include <cstdio>
#include <cstring>

struct Base {
    virtual ~Base() = default;
    int x = 0;
};
struct Wide : Base {
    double more[4] = {};
};

std::uintptr_t first_word(const Base& object) {  // the table's address under the Itanium ABI, not portable
    std::uintptr_t word;
    std::memcpy(&word, static_cast<const void*>(&object), sizeof word);
    return word;
}

int main() {
    Wide wide, another;
    Base base;
    Base* p = &wide;
    std::printf("sizeof(*p) is sizeof(Base): %s\n", sizeof(*p) == sizeof(Base) ? "yes" : "no");
    std::printf("sizeof(Wide) is larger:     %s\n", sizeof(Wide) > sizeof(*p) ? "yes" : "no");
    std::printf("two Wide, one table:        %s\n", first_word(wide) == first_word(another) ? "yes" : "no");
    std::printf("Base has another table:     %s\n", first_word(wide) != first_word(base) ? "yes" : "no");
}
