// A vector that grows moves its elements if moving cannot throw, and copies them if it can.
#include <vector>

template <bool CannotThrow> struct Element {
    int* copies;
    int* moves;
    constexpr Element(int* c, int* m) : copies(c), moves(m) {}
    constexpr Element(const Element& other) : copies(other.copies), moves(other.moves) { ++*copies; }
    constexpr Element(Element&& other) noexcept(CannotThrow) : copies(other.copies), moves(other.moves) { ++*moves; }
};
template <bool CannotThrow> constexpr int growth() {
    int copies = 0, moves = 0;
    std::vector<Element<CannotThrow>> all;
    all.reserve(2);
    all.emplace_back(&copies, &moves);
    all.emplace_back(&copies, &moves);
    all.reserve(4);
    return 10 * copies + moves;
}
static_assert(growth<true>() == 2);
static_assert(growth<false>() == 20);
