// flags: -std=c++14
struct Pinned {
    Pinned() {}
    Pinned(const Pinned&) = delete;
    Pinned(Pinned&&) = delete;
};

Pinned make() { return Pinned(); }  // error: (use of deleted function|call to deleted constructor)
