// A new object made from another one is copy-constructed, also where the line has an equals sign; an object that
// exists is assigned.
struct Counted {
    int* copies;
    int* assignments;
    constexpr Counted(int* c, int* a) : copies(c), assignments(a) {}
    constexpr Counted(const Counted& other) : copies(other.copies), assignments(other.assignments) { ++*copies; }
    constexpr Counted& operator=(const Counted&) {
        ++*assignments;
        return *this;
    }
};
constexpr int counts(bool assign) {
    int copies = 0, assignments = 0;
    Counted first(&copies, &assignments), other(&copies, &assignments);
    if (assign) {
        other = first;
    } else {
        Counted second = first;
        (void)second;
    }
    return 10 * copies + assignments;
}
static_assert(counts(false) == 10);
static_assert(counts(true) == 1);
