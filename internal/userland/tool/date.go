package tool

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseStamp reads the time of touch -t: [[CC]YY]MMDDhhmm[.ss], local.
func ParseStamp(s string, now time.Time) (time.Time, error) {
	body, sec, hasSec := strings.Cut(s, ".")
	layout := map[int]string{8: "01021504", 10: "0601021504", 12: "200601021504"}[len(body)]
	if layout == "" {
		return time.Time{}, fmt.Errorf("invalid date '%s'", s)
	}
	if hasSec {
		layout += "05"
		body += sec
	}
	t, err := time.ParseInLocation(layout, body, time.Local)
	if err != nil {
		return time.Time{}, fmt.Errorf("invalid date '%s'", s)
	}
	if len(layout) <= 10 && !strings.HasPrefix(layout, "06") {
		t = time.Date(now.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.Local)
	}
	return t, nil
}

// ParseDate reads a date as people write it for date -d and touch -d: @N, the
// ISO forms with or without time and zone, RFC 2822 and the output of date, a
// time of today, "now", "today", "yesterday", "tomorrow", and such followed by
// offsets ("2024-01-31 + 2 days", "3 hours ago").
func ParseDate(s string, now time.Time, loc *time.Location) (time.Time, error) {
	bad := fmt.Errorf("invalid date '%s'", s)
	in := strings.TrimSpace(s)
	if n, ok := strings.CutPrefix(in, "@"); ok {
		sec, frac, _ := strings.Cut(n, ".")
		v, err := strconv.ParseInt(sec, 10, 64)
		if err != nil || v > 1<<55 || v < -1<<55 {
			return time.Time{}, bad
		}
		ns := int64(0)
		if frac != "" {
			if ns, err = strconv.ParseInt((frac + "000000000")[:9], 10, 64); err != nil {
				return time.Time{}, bad
			}
		}
		return time.Unix(v, ns).In(loc), nil
	}
	now = now.In(loc)
	if in == "" {
		return time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, loc), nil
	}
	if t, ok := absolute(in, now, loc); ok {
		return t, nil
	}
	// Take the longest start that is a date, and offsets after it.
	words := strings.Fields(in)
	for n := len(words) - 1; n >= 0; n-- {
		t, ok := now, true
		if n > 0 {
			t, ok = absolute(strings.Join(words[:n], " "), now, loc)
		}
		if !ok {
			continue
		}
		if t, ok = offsets(t, words[n:]); ok {
			return t, nil
		}
	}
	return time.Time{}, bad
}

func absolute(s string, now time.Time, loc *time.Location) (time.Time, bool) {
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, loc)
	switch strings.ToLower(s) {
	case "now", "today":
		return now, true
	case "yesterday":
		return now.AddDate(0, 0, -1), true
	case "tomorrow":
		return now.AddDate(0, 0, 1), true
	case "midnight":
		return midnight, true
	case "noon":
		return midnight.Add(12 * time.Hour), true
	}
	for _, l := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05.999999999Z0700", "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05.999999999", "2006-01-02T15:04",
		"2006-01-02 15:04:05.999999999 -0700", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999 MST", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04 -0700", "2006-01-02 15:04",
		"2006-01-02", "20060102", "2006/01/02 15:04:05", "2006/01/02", "01/02/2006", "01/02/06",
		time.RFC1123Z, time.RFC1123, time.UnixDate, time.ANSIC, "Mon Jan _2 03:04:05 PM MST 2006",
		"2 Jan 2006 15:04:05 -0700", "2 Jan 2006 15:04:05", "2 Jan 2006 15:04", "2 Jan 2006", "Jan 2 2006 15:04:05", "Jan 2 2006 15:04", "Jan 2, 2006", "Jan 2 2006", "January 2, 2006", "2 January 2006",
	} {
		if t, err := time.ParseInLocation(l, s, loc); err == nil {
			if strings.Contains(l, "MST") {
				if name, off := t.Zone(); off == 0 && name != "UTC" && name != "GMT" && name != "Z" {
					return time.Time{}, false
				}
			}
			return t.In(loc), true
		}
	}
	for _, l := range []string{"15:04:05", "15:04", "3:04pm", "3pm"} {
		if t, err := time.ParseInLocation(l, strings.ToLower(s), loc); err == nil {
			return midnight.Add(time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second), true
		}
	}
	return time.Time{}, false
}

// offsets applies "+ 2 days", "1 week ago", "next month" and so on.
func offsets(t time.Time, words []string) (time.Time, bool) {
	var expanded []string
	for _, w := range words {
		// "+2" and "2days" are two words each.
		for len(w) > 1 && (w[0] == '+' || w[0] == '-') {
			expanded = append(expanded, w[:1])
			w = w[1:]
		}
		i := 0
		for i < len(w) && w[i] >= '0' && w[i] <= '9' {
			i++
		}
		if i > 0 && i < len(w) {
			expanded = append(expanded, w[:i])
			w = w[i:]
		}
		expanded = append(expanded, w)
	}
	for i := 0; i < len(expanded); {
		sign, n := 1, 1
		for i < len(expanded) && (expanded[i] == "+" || expanded[i] == "-") {
			if expanded[i] == "-" {
				sign = -sign
			}
			i++
		}
		if i >= len(expanded) {
			return t, false
		}
		if v, err := strconv.Atoi(expanded[i]); err == nil {
			n = v
			i++
		} else if expanded[i] == "next" {
			i++
		} else if expanded[i] == "last" {
			n = -1
			i++
		}
		if i >= len(expanded) || n > 1<<40 {
			return t, false
		}
		unit := strings.TrimSuffix(strings.ToLower(expanded[i]), "s")
		i++
		if i < len(expanded) && expanded[i] == "ago" {
			sign = -sign
			i++
		}
		n *= sign
		switch unit {
		case "sec", "second":
			t = t.Add(time.Duration(n) * time.Second)
		case "min", "minute":
			t = t.Add(time.Duration(n) * time.Minute)
		case "hour":
			t = t.Add(time.Duration(n) * time.Hour)
		case "day":
			t = t.AddDate(0, 0, n)
		case "week":
			t = t.AddDate(0, 0, 7*n)
		case "fortnight":
			t = t.AddDate(0, 0, 14*n)
		case "month":
			t = t.AddDate(0, n, 0)
		case "year":
			t = t.AddDate(n, 0, 0)
		default:
			return t, false
		}
	}
	return t, true
}

// FormatDate formats t by a date(1) or strftime format.
func FormatDate(format string, t time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		start := i
		i++
		flag := byte(0)
		for i < len(format) && strings.IndexByte("-_0^#", format[i]) >= 0 {
			flag = format[i]
			i++
		}
		width := 0
		for i < len(format) && format[i] >= '0' && format[i] <= '9' {
			width = width*10 + int(format[i]-'0')
			if width > 1000 {
				width = 1000
			}
			i++
		}
		colons := 0
		for i < len(format) && format[i] == ':' {
			colons++
			i++
		}
		if i < len(format) && (format[i] == 'E' || format[i] == 'O') && i+1 < len(format) {
			i++
		}
		if i >= len(format) {
			b.WriteString(format[start:])
			break
		}
		num := func(v, w int, pad byte) string {
			switch flag {
			case '-':
				return strconv.Itoa(v)
			case '_':
				pad = ' '
			case '0':
				pad = '0'
			}
			w = max(w, width)
			s := strconv.Itoa(v)
			if len(s) < w {
				s = strings.Repeat(string(pad), w-len(s)) + s
			}
			return s
		}
		h12 := (t.Hour()+11)%12 + 1
		isoY, isoW := t.ISOWeek()
		_, off := t.Zone()
		var s string
		switch format[i] {
		case '%':
			s = "%"
		case 'a':
			s = t.Format("Mon")
		case 'A':
			s = t.Format("Monday")
		case 'b', 'h':
			s = t.Format("Jan")
		case 'B':
			s = t.Format("January")
		case 'c':
			s = t.Format("Mon Jan _2 15:04:05 2006")
		case 'C':
			s = num(t.Year()/100, 2, '0')
		case 'd':
			s = num(t.Day(), 2, '0')
		case 'D', 'x':
			s = t.Format("01/02/06")
		case 'e':
			s = num(t.Day(), 2, ' ')
		case 'F':
			s = t.Format("2006-01-02")
		case 'g':
			s = num(isoY%100, 2, '0')
		case 'G':
			s = num(isoY, 4, '0')
		case 'H':
			s = num(t.Hour(), 2, '0')
		case 'I':
			s = num(h12, 2, '0')
		case 'j':
			s = num(t.YearDay(), 3, '0')
		case 'k':
			s = num(t.Hour(), 2, ' ')
		case 'l':
			s = num(h12, 2, ' ')
		case 'm':
			s = num(int(t.Month()), 2, '0')
		case 'M':
			s = num(t.Minute(), 2, '0')
		case 'n':
			s = "\n"
		case 'N':
			s = fmt.Sprintf("%09d", t.Nanosecond())
			if width > 0 && width < 9 {
				s = s[:width]
			}
			if flag == '-' {
				s = strings.TrimLeft(s, "0")
			}
		case 'p':
			s = t.Format("PM")
		case 'P':
			s = strings.ToLower(t.Format("PM"))
		case 'q':
			s = strconv.Itoa((int(t.Month()) + 2) / 3)
		case 'r':
			s = t.Format("03:04:05 PM")
		case 'R':
			s = t.Format("15:04")
		case 's':
			s = strconv.FormatInt(t.Unix(), 10)
		case 'S':
			s = num(t.Second(), 2, '0')
		case 't':
			s = "\t"
		case 'T', 'X':
			s = t.Format("15:04:05")
		case 'u':
			s = strconv.Itoa((int(t.Weekday())+6)%7 + 1)
		case 'U':
			s = num((t.YearDay()+6-int(t.Weekday()))/7, 2, '0')
		case 'V':
			s = num(isoW, 2, '0')
		case 'w':
			s = strconv.Itoa(int(t.Weekday()))
		case 'W':
			s = num((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2, '0')
		case 'y':
			s = num(t.Year()%100, 2, '0')
		case 'Y':
			s = num(t.Year(), 4, '0')
		case 'z':
			sign := '+'
			if off < 0 {
				sign, off = '-', -off
			}
			switch colons {
			case 0:
				s = fmt.Sprintf("%c%02d%02d", sign, off/3600, off/60%60)
			case 1:
				s = fmt.Sprintf("%c%02d:%02d", sign, off/3600, off/60%60)
			default:
				s = fmt.Sprintf("%c%02d:%02d:%02d", sign, off/3600, off/60%60, off%60)
			}
		case 'Z':
			s, _ = t.Zone()
		default:
			s = format[start : i+1]
		}
		if flag == '^' {
			s = strings.ToUpper(s)
		}
		if len(s) < width && strings.IndexByte("aAbBhpPZ", format[i]) >= 0 {
			s = strings.Repeat(" ", width-len(s)) + s
		}
		b.WriteString(s)
	}
	return b.String()
}
