// A copy constructor takes a reference; one that takes its own type by value may not even be declared.
struct Fine {
    Fine() = default;
    Fine(const Fine&) {}
};

#ifdef FORBIDDEN
struct Endless {
    Endless() = default;
    Endless(Endless other) {}  // refused here
};
#endif
