// Copy and swap: assigning an object to itself keeps its value, an allocation that fails leaves the target alone, and
// an object that was moved from is empty and can be destroyed.
#include <utility>

struct Buffer {
    int* data;
    constexpr explicit Buffer(int value) : data(new int(value)) {}
    constexpr Buffer(const Buffer& other) : data(other.data ? new int(*other.data) : nullptr) {}
    constexpr Buffer(Buffer&& other) noexcept : data(std::exchange(other.data, nullptr)) {}
    constexpr Buffer& operator=(Buffer other) noexcept {
        std::swap(data, other.data);
        return *this;
    }
    constexpr ~Buffer() { delete data; }
};
constexpr int after_self_assignment() {
    Buffer buffer(4);
    Buffer& same = buffer;
    buffer = same;
    return *buffer.data;
}
constexpr bool moved_from_is_empty() {
    Buffer first(6);
    Buffer second = std::move(first);
    return first.data == nullptr && *second.data == 6;
}
static_assert(after_self_assignment() == 4);
static_assert(moved_from_is_empty());
// Only the copy into the argument can throw, and it is made before the target is touched: the body cannot.
static_assert(noexcept(std::declval<Buffer&>() = std::declval<Buffer>()));
static_assert(!noexcept(std::declval<Buffer&>() = std::declval<const Buffer&>()));
