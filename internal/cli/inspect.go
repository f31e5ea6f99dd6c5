package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) inspectCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect [flags] BOX...",
		Short: "Print all that is known about boxes, as JSON",
		Example: `  hutch inspect dev
  hutch inspect -f '{{.State}} {{json .Limits}}' dev`,
		Args: need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return inspect(e, format, args, func(ref string) (box.Info, error) {
				_, info, err := e.find(ctx, ref)
				return info, err
			}, func(refs []string, one func(string) error) error { return e.each(ctx, refs, one) })
		},
		ValidArgsFunction: e.completeBoxes,
	}
	parsed(cmd.Flags(), &format, "format", "f", "template", "a Go template for each instead of JSON", someText)
	return cmd
}

// inspect prints what get finds for each of refs, as a JSON array or one by
// one by a template.
func inspect[T any](e *env, format string, refs []string, get func(string) (T, error), each func([]string, func(string) error) error) error {
	var tmpl *template.Template
	if format != "" {
		t, err := template.New("format").Funcs(template.FuncMap{"json": func(v any) (string, error) {
			data, err := json.Marshal(v)
			return string(data), err
		}}).Parse(format)
		if err != nil {
			return usagef("--format: %v; write a Go template, for example '{{.Name}}'", err)
		}
		tmpl = t
	}
	found := []T{}
	err := each(refs, func(ref string) error {
		v, err := get(ref)
		if err != nil {
			return err
		}
		if tmpl == nil {
			found = append(found, v)
			return nil
		}
		if err := tmpl.Execute(e.stdout, v); err != nil {
			return fmt.Errorf("--format: %w; see 'hutch inspect' for the fields", err)
		}
		_, err = io.WriteString(e.stdout, "\n")
		return err
	})
	if tmpl == nil {
		if derr := e.document(found); err == nil {
			err = derr
		}
	}
	return err
}
