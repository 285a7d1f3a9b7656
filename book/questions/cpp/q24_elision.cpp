// Since C++17 a returned prvalue needs no copy or move: not an optimisation, there is only one object.
#include <cstdio>

struct Pinned {
    Pinned* self;
    Pinned() : self(this) {}
    Pinned(const Pinned&) = delete;
    Pinned(Pinned&&) = delete;
};

Pinned make() { return Pinned(); }

int main() {
    Pinned p = make();
    std::printf("built where it stays: %s\n", p.self == &p ? "yes" : "no");
}
