// Which function runs: four lines that look alike.
#include <cstdio>

struct Probe {
    Probe() = default;
    Probe(const Probe&) { std::printf("copy constructor"); }
    Probe& operator=(const Probe&) {
        std::printf("copy assignment");
        return *this;
    }
};

void take(Probe) {}
Probe make() { return Probe{}; }

int main() {
    Probe a;
    std::printf("Probe b = a;       ");
    Probe b = a;
    std::printf("\nb = a;             ");
    b = a;
    std::printf("\ntake(a);           ");
    take(a);
    std::printf("\nProbe c = make();  ");
    Probe c = make();
    std::printf("neither\n");
    (void)c;
}
