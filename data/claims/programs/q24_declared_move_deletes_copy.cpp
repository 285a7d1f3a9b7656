// Declaring a move constructor makes the implicit copy constructor deleted.
struct Plain {};
struct Movable {
    Movable() = default;
    Movable(Movable&&) = default;
};
template <class T> concept Copyable = requires(const T& other) { T(other); };
static_assert(Copyable<Plain>);
static_assert(!Copyable<Movable>);

#ifdef FORBIDDEN
Movable copied(const Movable& other) { return other; }  // refused here
#endif
