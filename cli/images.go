package cli

import (
	"fmt"
	"io"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

func (c *factory) images() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List the images on this node",
		Long: `List the images on this node. PINNED shows why garbage collection keeps an unused image: it is in an
image archive, pinned by the runtime, the sandbox image, or was not pulled by this node and might not be
available again. Other unused images are removed when disk usage is high or they reach their maximum
age.

Archives that are not imported yet, or are broken, are listed below the table.`,
		Example: `  berth images
  berth images -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			list, err := client.Images(cmd.Context())
			switch {
			case err != nil:
				return err
			case format != "":
				return encode(cmd.OutOrStdout(), format, list)
			}
			return writeImages(cmd.OutOrStdout(), c.screen(cmd.OutOrStdout()), list)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	fixed(cmd, "output", "json", "yaml")
	return cmd
}

func writeImages(w io.Writer, s screen, list nodeapi.Images) error {
	rows := [][]string{{"IMAGE", "TAG", "IMAGE ID", "SIZE", "IN USE", "PINNED"}}
	for _, img := range list.Images {
		used := "no"
		if img.InUse {
			used = "yes"
		}
		for _, name := range tagsOf(img.Names) {
			rows = append(
				rows,
				[]string{name[0], name[1], shortID(img.ID), decimal(img.Size), used, orNone(img.Pinned)},
			)
		}
	}
	t := table{w: w}
	if err := t.print(rows...); err != nil {
		return err
	}
	for _, a := range list.Archives {
		color, text := colorWarning, a.Path+": "+a.State
		switch a.State {
		case "imported":
			continue
		case "broken":
			color = colorError
		}
		if a.Message != "" {
			text += ": " + a.Message
		}
		if _, err := fmt.Fprintln(w, s.paint(color, clean(text))); err != nil {
			return err
		}
	}
	return nil
}

// tagsOf returns one row per tag, with repository and tag as in crictl. An image that has only
// digests has one row without a tag.
func tagsOf(names []string) (out [][2]string) {
	repository := none
	for _, n := range names {
		if before, _, pinned := strings.Cut(n, "@"); pinned {
			repository = before
		} else if at := strings.LastIndex(n, ":"); at > strings.LastIndex(n, "/") {
			out = append(out, [2]string{n[:at], n[at+1:]})
		}
	}
	if len(out) == 0 {
		out = append(out, [2]string{repository, none})
	}
	return out
}

// shortID is an image ID as in crictl: 13 digits.
func shortID(id string) string {
	id = id[strings.Index(id, ":")+1:]
	return id[:min(len(id), 13)]
}

// decimal is a size in powers of 1000, as in crictl.
func decimal(n uint64) string {
	v, unit := float64(n), 0
	units := [...]string{"B", "kB", "MB", "GB", "TB"}
	for ; v >= 1000 && unit < len(units)-1; unit++ {
		v /= 1000
	}
	return fmt.Sprintf("%.3g%s", v, units[unit])
}
