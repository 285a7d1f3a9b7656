// An empty class has size 1; as a base it takes nothing, as a member it costs padding unless it may share its address.
struct Empty {};
struct AsBase : Empty {
    int value;
};
struct AsMember {
    Empty empty;
    int value;
};
struct Shared {
    [[no_unique_address]] Empty empty;
    int value;
};
static_assert(sizeof(Empty) == 1);
static_assert(sizeof(AsBase) == sizeof(int));
static_assert(sizeof(AsMember) == 2 * sizeof(int));
static_assert(sizeof(Shared) == sizeof(int));
