package tool

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseSize reads a count with an optional GNU suffix: b (512), K or k and M
// G T P E (powers of 1024), the same with "iB", or with "B" for powers of
// 1000. The result is never negative.
func ParseSize(s string) (int64, error) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	if i == 0 && s != "" && strings.ContainsRune("kKMGTPEb", rune(s[0])) {
		return ParseSize("1" + s)
	}
	n, err := strconv.ParseInt(s[:i], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("invalid number: '%s'", s)
	}
	suf := s[i:]
	mult := int64(1)
	switch {
	case suf == "" || suf == "c":
	case suf == "b":
		mult = 512
	case suf == "w":
		mult = 2
	default:
		p := strings.IndexByte("KMGTPE", strings.ToUpper(suf[:1])[0])
		base := int64(1024)
		switch suf[1:] {
		case "", "iB":
		case "B":
			base = 1000
		default:
			p = -1
		}
		if p < 0 {
			return 0, fmt.Errorf("invalid suffix in '%s'", s)
		}
		for ; p >= 0; p-- {
			mult *= base
		}
	}
	if n > math.MaxInt64/mult {
		return 0, fmt.Errorf("'%s': value too large", s)
	}
	return n * mult, nil
}

// HumanSize writes n bytes as ls -h does: one decimal below ten, rounded up,
// with a suffix of base 1024.
func HumanSize(n uint64) string {
	if n < 1024 {
		return strconv.FormatUint(n, 10)
	}
	f := float64(n)
	i := -1
	for f >= 1024 && i < 5 {
		f /= 1024
		i++
	}
	if f < 10 {
		r := math.Ceil(f*10) / 10
		if r < 10 {
			return fmt.Sprintf("%.1f%c", r, "KMGTPE"[i])
		}
		f = r
	}
	f = math.Ceil(f)
	if f >= 1024 && i < 5 {
		f, i = 1, i+1
		return fmt.Sprintf("%.1f%c", f, "KMGTPE"[i])
	}
	return fmt.Sprintf("%.0f%c", f, "KMGTPE"[i])
}

// ParseInterval reads a duration as sleep does: a decimal number with an
// optional suffix s, m, h or d. "infinity" is the longest duration.
func ParseInterval(s string) (time.Duration, error) {
	unit := time.Second
	num := s
	if s != "" {
		switch s[len(s)-1] {
		case 's':
			num = s[:len(s)-1]
		case 'm':
			unit, num = time.Minute, s[:len(s)-1]
		case 'h':
			unit, num = time.Hour, s[:len(s)-1]
		case 'd':
			unit, num = 24*time.Hour, s[:len(s)-1]
		}
	}
	if s == "infinity" || s == "inf" {
		return math.MaxInt64, nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || math.IsNaN(f) {
		return 0, fmt.Errorf("invalid time interval '%s'", s)
	}
	d := f * float64(unit)
	if d >= math.MaxInt64 {
		return math.MaxInt64, nil
	}
	return time.Duration(d), nil
}
