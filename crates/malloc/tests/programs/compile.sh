# Compiles a large generated C file and a C++ program of many templates; the assembly must be the same in every run.
set -eu
awk 'BEGIN {
    print "#include <stdio.h>"
    for (f = 0; f < 100; f++) {
        printf "static int f%d(int a, int b) {\n    int t[8] = {%d, a, b};\n", f, f
        for (i = 0; i < 8; i++) printf "    for (int i = 0; i < b + %d; i++) t[(i + %d) & 7] += (a ^ i) * %d;\n", i, i, f * i + 1
        printf "    return t[0] ^ t[7];\n}\n"
    }
    print "int main(void) {\n    int s = 0;"
    for (f = 0; f < 100; f++) printf "    s ^= f%d(s, %d);\n", f, f % 5
    print "    printf(\"%d\\n\", s);\n}"
}' >large.c
gcc -O1 -S large.c
sha256sum <large.s
gcc large.s -o large
./large
cat >templates.cc <<'END'
#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>
template <int N> struct chain { static long value(std::map<int, std::string> &m) { m[N] = std::to_string(N); return N + chain<N - 1>::value(m); } };
template <> struct chain<0> { static long value(std::map<int, std::string> &) { return 0; } };
int main() {
    std::map<int, std::string> m;
    std::cout << chain<150>::value(m) << ' ' << m.size() << '\n';
    std::vector<std::string> words;
    for (auto &e : m) words.push_back(e.second);
    std::sort(words.begin(), words.end());
    std::cout << words[77] << ' ' << std::regex_replace(words[10], std::regex("[0-4]+"), "x") << '\n';
}
END
g++ -O1 -S templates.cc
sha256sum <templates.s
g++ templates.s -o templates
./templates
ar rc all.a large templates
objdump -d large | wc -l
