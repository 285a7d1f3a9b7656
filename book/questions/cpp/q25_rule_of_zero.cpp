// The same class, as one would write it: the member knows how to copy, move and free.
#include <cstdio>
#include <memory>
#include <vector>

struct Block {
    std::vector<int> data;
    std::shared_ptr<int> shared;  // means to be shared: a deep copy would be the bug here
};

int main() {
    Block a{{10, 20}, std::make_shared<int>(1)};
    Block b = a;
    b.data[0] = 99;
    *b.shared = 2;
    std::printf("a.data[0] = %d, *a.shared = %d\n", a.data[0], *a.shared);
}
