// One memory, two addresses; one address, two memories. The CPU's version of exporting an allocation.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

int main() {
    std::FILE* file = std::tmpfile();  // stands for the physical allocation, its descriptor for the exported handle
    if (!file || ftruncate(fileno(file), 4096) != 0) return 1;
    auto map = [&](int kind) {
        return static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, kind, fileno(file), 0));
    };
    char *view = map(MAP_SHARED), *other = map(MAP_SHARED), *own = map(MAP_PRIVATE);
    if (view == MAP_FAILED || other == MAP_FAILED || own == MAP_FAILED) return 1;
    std::strcpy(own, "parent");

    if (fork() == 0) {             // the child inherits the three addresses, number for number
        std::strcpy(view, "ok");   // the same memory as the parent's
        std::strcpy(own, "child");  // the same number, from now on another page
        _exit(std::strcmp(own, "child"));
    }
    int status = 1;
    wait(&status);  // without it nothing orders the child's write before the reads below
    std::printf("two views at different addresses: %s\n", view != other ? "yes" : "no");
    std::printf("child's write seen through both:  %s, %s\n", view, other);
    std::printf("child had its own text there:     %s\n", status == 0 ? "yes" : "no");
    std::printf("parent at that same address:      %s\n", own);
}
