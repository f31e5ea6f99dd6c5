package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) imagesCommand() *cobra.Command {
	cmd := e.imageListCommand()
	cmd.Use = "images [flags] [IMAGE]"
	return cmd
}

// imageListCommand is "images" and "image ls".
func (e *env) imageListCommand() *cobra.Command {
	var quiet, full bool
	cmd := &cobra.Command{
		Use:     "ls [flags] [IMAGE]",
		Short:   "List images",
		Long:    `IMAGE selects by name, with or without a tag.`,
		Example: `  hutch images python`,
		Args:    need(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			imgs, err := rt.Images().List(ctx)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				imgs = slices.DeleteFunc(imgs, func(img box.Image) bool {
					return !slices.ContainsFunc(img.Names, func(n string) bool { return nameMatches(n, args[0]) })
				})
			}
			switch {
			case e.json:
				if imgs == nil {
					imgs = []box.Image{}
				}
				return e.document(imgs)
			case quiet:
				for _, img := range imgs {
					if err := e.println(imageID(img, full)); err != nil {
						return err
					}
				}
				return nil
			}
			t := newTable(e.stdout, "REPOSITORY", "TAG", "IMAGE ID", "CREATED", "SIZE")
			for _, img := range imgs {
				names := img.Names
				if len(names) == 0 {
					names = []string{"<none>"}
				}
				for _, n := range names {
					if len(args) == 1 && !nameMatches(n, args[0]) {
						continue
					}
					repository, tag := splitName(n)
					t.row(repository, tag, imageID(img, full), imageAge(e, img.Created), size(img.Size))
				}
			}
			return t.flush()
		},
		ValidArgsFunction: e.completeImages,
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "only ids")
	cmd.Flags().BoolVar(&full, "no-trunc", false, "do not shorten ids")
	return cmd
}

// imageAge is empty where the image does not say, or says the epoch, as
// reproducible builds do.
func imageAge(e *env, t time.Time) string {
	if t.Unix() <= 0 {
		return "N/A"
	}
	return e.ago(t)
}

// imageID is the beginning of the manifest's digest.
func imageID(img box.Image, full bool) string {
	if full {
		return img.Digest
	}
	return layerName(img.Digest)
}

// familiar is an image's name as people write it.
func familiar(name string) string {
	name = strings.TrimPrefix(name, "index.docker.io/")
	name = strings.TrimPrefix(name, "docker.io/")
	return strings.TrimPrefix(name, "library/")
}

// splitName splits a name into repository and tag; a digest stands in for a
// missing tag.
func splitName(name string) (repository, tag string) {
	name = familiar(name)
	if repository, digest, ok := strings.Cut(name, "@"); ok {
		return repository, digest
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i], name[i+1:]
	}
	return name, "<none>"
}

func nameMatches(name, want string) bool {
	name, want = familiar(name), familiar(want)
	repository, _ := splitName(name)
	return name == want || repository == want
}
