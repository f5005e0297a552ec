// Long evaluations ask now and then whether to go on.
// There is no twin: it calculates nothing; tests/optimizer/test_search_budget.py holds it.
#pragma once

#include <chrono>
#include <cstdint>

namespace taskflow {

struct Interrupted {};  // thrown in the middle of an evaluation that Python does not want any more

class Checkpoint {
public:
    bool (*ask)(void*) = nullptr;  // whether to go on
    void* asker = nullptr;
    bool paused = false;  // while what is made must be complete
    std::chrono::duration<double> every{0.02};

    // To be called often. Looks at the clock at every 256th call, and asks when so much time is over.
    void operator()() {
        if (!--left_) look();
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr uint32_t OFTEN = 256;
    uint32_t left_ = OFTEN;
    Clock::time_point next_{};

    [[gnu::noinline]] void look() {
        left_ = OFTEN;
        if (paused || Clock::now() < next_) return;
        const bool on = ask(asker);
        next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(every);
        if (!on) throw Interrupted{};
    }
};

}  // namespace taskflow
