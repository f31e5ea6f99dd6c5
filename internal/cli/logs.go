package cli

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hutch-sandbox/hutch/box"
)

// logRecord is one line of "logs --json".
type logRecord struct {
	Time   time.Time `json:"time"`
	Stream string    `json:"stream"` // stdout or stderr
	Data   *string   `json:"data,omitempty"`
	Base64 string    `json:"base64,omitempty"` // instead of data where it is not UTF-8
}

// parseSince reads a point in time: "10m" before now, Unix seconds, or RFC 3339.
func (e *env) parseSince(s string) (time.Time, error) {
	if secs, err := strconv.ParseFloat(s, 64); err == nil && secs >= 0 && secs < 1e11 {
		return time.Unix(0, int64(secs*float64(time.Second))), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return e.Now().Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("not a time; write for example 10m, 2006-01-02T15:04:05Z or Unix seconds")
}

func (e *env) logsCommand() *cobra.Command {
	var (
		opts       = box.LogOptions{Tail: -1}
		timestamps bool
	)
	cmd := &cobra.Command{
		Use:     "logs [flags] BOX",
		Short:   "Show the output of a box's main command",
		Long:    `What it wrote to standard error goes to standard error.`,
		Example: `  hutch logs -f --tail 20 web`,
		Args:    need(1, 1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			b, _, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			if e.fromNow(&opts) {
				return nil
			}
			for entry, err := range b.Logs(ctx, opts) {
				if err != nil {
					return err
				}
				if err := e.printLog(entry, timestamps); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: e.completeBoxes,
	}
	fs := cmd.Flags()
	e.logFlags(fs, &opts)
	fs.BoolVarP(&timestamps, "timestamps", "t", false, "show when each line came")
	return cmd
}

// logFlags choose the part of a log.
func (e *env) logFlags(fs *pflag.FlagSet, opts *box.LogOptions) {
	fs.BoolVarP(&opts.Follow, "follow", "f", false, "wait for more until the box stops")
	parsed(fs, &opts.Tail, "tail", "n", "lines", "only the last lines (default all)", parseTail)
	parsed(fs, &opts.Since, "since", "", "time", "only from then on: 10m, a time, Unix seconds", e.parseSince)
}

// fromNow turns a tail of no lines into "from now on": the contract's zero
// means all. It reports whether that leaves nothing to show.
func (e *env) fromNow(opts *box.LogOptions) (nothing bool) {
	if opts.Tail != 0 {
		return false
	}
	opts.Tail, opts.Since = -1, e.Now()
	return !opts.Follow
}

func (e *env) printLog(entry box.LogEntry, timestamps bool) error {
	if e.json {
		r := logRecord{Time: entry.Time, Stream: "stdout"}
		if entry.Stderr {
			r.Stream = "stderr"
		}
		if utf8.Valid(entry.Data) {
			s := string(entry.Data)
			r.Data = &s
		} else {
			r.Base64 = base64.StdEncoding.EncodeToString(entry.Data)
		}
		return e.record(r)
	}
	data := entry.Data
	if timestamps {
		data = append([]byte(entry.Time.UTC().Format("2006-01-02T15:04:05.000000000Z07:00")+" "), data...)
		if !strings.HasSuffix(string(data), "\n") {
			data = append(data, '\n')
		}
	}
	if entry.Stderr {
		_, err := e.Stderr.Write(data)
		return err
	}
	_, err := e.stdout.Write(data)
	return err
}
