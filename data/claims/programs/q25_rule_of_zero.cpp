// With a vector as member nothing has to be written by hand: the copy is deep, the move takes the elements.
#include <utility>
#include <vector>

struct Plain {
    std::vector<int> values;
};
constexpr bool copy_is_deep() {
    Plain first{{10, 20}};
    Plain second = first;
    second.values[0] = 99;
    return first.values[0] == 10 && second.values[0] == 99;
}
constexpr bool move_takes() {
    Plain first{{10, 20}};
    Plain second = std::move(first);
    return first.values.empty() && second.values.size() == 2;
}
static_assert(copy_is_deep());
static_assert(move_takes());
