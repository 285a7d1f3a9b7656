// Sizes on this compiler and machine. What the standard fixes is in static_assert.
#include <cstdio>

struct Empty {};
struct Plain {
    int x;
    static int shared;  // not in the object
    void f() {}         // nor this
};
struct Poly {
    virtual ~Poly() = default;
    virtual void f() {}
    int x;
};
struct MoreVirtual : Poly {
    void f() override {}
    virtual void g() {}
    virtual void h() {}
};
struct Left {
    virtual ~Left() = default;
    int l;
};
struct Right {
    virtual ~Right() = default;
    int r;
};
struct Multiple : Left, Right {
    int m;
};
struct Shared {
    int v;
};
struct Virtual : virtual Shared {
    int d;
};
struct EmptyBase : Empty {
    int x;
};
struct EmptyMember {
    Empty e;
    int x;
};
struct Loose {
    char a;
    double b;
    char c;
};
struct Tight {
    double b;
    char a, c;
};

#define SHOW(type) std::printf("%-12s%3zu\n", #type, sizeof(type))

int main() {
    static_assert(sizeof(Empty) >= 1);
    static_assert(sizeof(char) == 1);
    SHOW(void*);
    SHOW(Empty);
    SHOW(Plain);
    SHOW(Poly);
    SHOW(MoreVirtual);
    SHOW(Multiple);
    SHOW(Virtual);
    SHOW(EmptyBase);
    SHOW(EmptyMember);
    SHOW(Loose);
    SHOW(Tight);
}
