// A literal has no address; a named constant has one.
constexpr int one = 1;
constexpr const int* named = &one;
static_assert(*named == 1);

#ifdef FORBIDDEN
const int* unnamed = &1;  // refused here
#endif
