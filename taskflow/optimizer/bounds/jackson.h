// Jackson's preemptive schedule: what one machine needs at least for jobs that arrive, take time, and have something after
// them (Jackson 1955; Carlier 1982). No schedule without preemption is shorter.
// There is no twin: a bound is right if no completion is faster; tests/optimizer/bounds/test_relaxed_step.py holds it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace taskflow {
namespace relax {

struct Job {
    double head, cost, tail;  // seconds from the start of the step; of work; to the end of the step
};

class Jackson {
public:
    // ``jobs`` get sorted. Stops as soon as the result is certain to reach ``limit``.
    double seconds(std::vector<Job>& jobs, double limit) {
        std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
        heap_.clear();
        double now = 0, longest = 0;
        for (size_t next = 0; next < jobs.size() || !heap_.empty();) {
            if (heap_.empty()) now = std::max(now, jobs[next].head);
            for (; next < jobs.size() && jobs[next].head <= now; ++next) {
                heap_.push_back({jobs[next].tail, jobs[next].cost});
                std::push_heap(heap_.begin(), heap_.end(), shorter);
            }
            const double until = next < jobs.size() ? jobs[next].head : 1e300;
            auto& [tail, left] = heap_.front();
            if (now + left <= until) {
                now += left;
                longest = std::max(longest, now + tail);
                if (longest >= limit) return longest;
                std::pop_heap(heap_.begin(), heap_.end(), shorter);
                heap_.pop_back();
            } else {
                left -= until - now;
                now = until;
            }
        }
        return longest;
    }

private:
    static bool shorter(const std::pair<double, double>& a, const std::pair<double, double>& b) {
        return a.first < b.first;
    }
    std::vector<std::pair<double, double>> heap_;  // (tail, seconds left): the longest tail first
};

}  // namespace relax
}  // namespace taskflow
