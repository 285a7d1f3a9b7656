// Pointers that are const themselves cannot be exchanged.
#include <utility>

void exchange(const int*& a, const int*& b) { std::swap(a, b); }

#ifdef FORBIDDEN
void exchange(const int* const& a, const int* const& b) { std::swap(a, b); }  // refused here
#endif
