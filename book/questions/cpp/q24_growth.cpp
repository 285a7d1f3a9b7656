// A growing vector moves its elements only if a move cannot throw.
#include <cstdio>
#include <type_traits>
#include <vector>

template <bool Safe>
struct Element {
    static inline int copies = 0, moves = 0;
    Element() = default;
    Element(const Element&) { ++copies; }
    Element(Element&&) noexcept(Safe) { ++moves; }
};

struct OnlyMove {
    OnlyMove() = default;
    OnlyMove(OnlyMove&&) = default;  // and the implicit copy constructor is deleted
};

template <bool Safe>
void grow(const char* name) {
    std::vector<Element<Safe>> v(3);
    v.reserve(v.capacity() + 1);
    std::printf("%s copies %d, moves %d\n", name, Element<Safe>::copies, Element<Safe>::moves);
}

int main() {
    grow<false>("move may throw: ");
    grow<true>("move is noexcept:");
    std::printf("copyable with a declared move: %s\n", std::is_copy_constructible_v<OnlyMove> ? "yes" : "no");
}
