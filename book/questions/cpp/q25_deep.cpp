// An owner with the five functions, assignment by copy and swap.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>

class Block {
    std::size_t size_ = 0;
    int* data_ = nullptr;

public:
    explicit Block(std::size_t size) : size_(size), data_(size ? new int[size]{} : nullptr) {}
    Block(const Block& other) : Block(other.size_) { std::copy_n(other.data_, size_, data_); }
    Block(Block&& other) noexcept
        : size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}
    Block& operator=(Block other) noexcept {  // by value: the copy is made, or fails, before anything changes here
        std::swap(size_, other.size_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~Block() { delete[] data_; }

    int& operator[](std::size_t i) { return data_[i]; }
    std::size_t size() const { return size_; }
};

int main() {
    Block a(2);
    a[0] = 10;
    a[1] = 20;
    Block b = a;
    b[0] = 99;
    std::printf("after b[0] = 99: a[0] = %d, b[0] = %d\n", a[0], b[0]);
    Block& same = a;
    a = same;
    std::printf("self-assignment: %d %d\n", a[0], a[1]);
    b = Block(3);
    std::printf("assigned:        size %zu, b[0] = %d\n", b.size(), b[0]);
    Block c = std::move(a);
    std::printf("moved from:      size %zu, new owner holds %d %d\n", a.size(), c[0], c[1]);
}
