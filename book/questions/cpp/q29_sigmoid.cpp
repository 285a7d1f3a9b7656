// One form fails on the left, the other on the right; the branch on the sign takes the good half of each.
#include <cfenv>
#include <cmath>
#include <cstdio>

float left_bad(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float right_bad(float x) { return std::exp(x) / (1.0f + std::exp(x)); }
float stable(float x) {
    if (x >= 0) return 1.0f / (1.0f + std::exp(-x));
    float small = std::exp(x);
    return small / (1.0f + small);
}
float loss(float x, float y) { return std::fmax(x, 0.0f) - x * y + std::log1p(std::exp(-std::fabs(x))); }

void show(const char* name, float (*form)(float), float x) {
    volatile float at = x;  // keeps the compiler from computing the value itself, without the flag
    std::feclearexcept(FE_ALL_EXCEPT);
    volatile float value = form(at);
    const char* flag = std::fetestexcept(FE_OVERFLOW) ? "overflow" : "-";
    float v = value;
    if (std::isnan(v)) std::printf("%-18s at %4g: %-11s %s\n", name, static_cast<double>(x), "NaN", flag);
    else std::printf("%-18s at %4g: %-11.4g %s\n", name, static_cast<double>(x), static_cast<double>(v), flag);
}

int main() {
    show("1 / (1 + e^-x)", left_bad, -89.0f);
    show("stable", stable, -89.0f);
    show("e^x / (1 + e^x)", right_bad, 89.0f);
    show("stable", stable, 89.0f);
    volatile float x = -110.0f;
    std::printf("-log(sigmoid(-110)) is infinite: %s\n", std::isinf(std::log(stable(x))) ? "yes" : "no");
    std::printf("the loss on the logit:           %g\n", static_cast<double>(loss(x, 1.0f)));
}
