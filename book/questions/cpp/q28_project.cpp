// The projection with its two decisions: line or segment, and what a degenerate segment is.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

struct Point {
    double x, y;
};
Point operator-(Point p, Point q) { return {p.x - q.x, p.y - q.y}; }
double dot(Point p, Point q) { return p.x * q.x + p.y * q.y; }

std::optional<double> parameter(Point a, Point b, Point c) {
    Point d = b - a;
    double largest = std::max({std::fabs(a.x), std::fabs(a.y), std::fabs(b.x), std::fabs(b.y)});
    double length = std::max(std::fabs(d.x), std::fabs(d.y));
    if (length <= 4 * std::numeric_limits<double>::epsilon() * largest) return std::nullopt;  // also a == b
    Point unit = {d.x / length, d.y / length};  // so that no square overflows or vanishes
    return dot(c - a, unit) / dot(unit, unit) / length;
}

void show(const char* name, Point a, Point b, Point c) {
    if (auto t = parameter(a, b, c)) {
        double s = std::clamp(*t, 0.0, 1.0);
        std::printf("%-22s t = %5.2f, line (%g, %g), segment (%g, %g)\n", name, *t, a.x + *t * (b.x - a.x),
                    a.y + *t * (b.y - a.y), a.x + s * (b.x - a.x), a.y + s * (b.y - a.y));
    } else {
        std::printf("%-22s no direction\n", name);
    }
}

int main() {
    show("inside", {1, 1}, {4, 5}, {5, 2});
    show("before A", {1, 1}, {4, 5}, {-2, 1});
    show("beyond B", {1, 1}, {4, 5}, {6, 7});
    show("tiny but good", {0, 0}, {1e-200, 0}, {5e-201, 1});
    show("unresolved at 1e8", {1e8, 0}, {1e8 + 1e-9, 0}, {1e8, 1});
    show("A equals B", {2, 3}, {2, 3}, {0, 0});
}
