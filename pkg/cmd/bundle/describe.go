// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bytesize"
)

// maxEvents is how many events are shown, the newest.
const maxEvents = 20

// describe says all about one bundle.
func (s *session) describe() *cobra.Command {
	return &cobra.Command{
		Use:   "describe NAME",
		Short: "Say how a bundle does, what happened, and what to do next",
		Example: `  kubectl bundle describe app

  # In another namespace
  kubectl bundle describe app -n team-a`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := s.bundle(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return s.describeBundle(b, s.events(cmd.Context(), b))
		},
	}
}

// events are those about a bundle, the oldest first. Who may not read them, or a server that has none, has none.
func (s *session) events(ctx context.Context, b *v1alpha1.Bundle) []corev1.Event {
	client, err := s.kubernetes()
	if err != nil {
		return nil
	}
	list, err := client.CoreV1().Events(b.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.AndSelectors(
			fields.OneTermEqualSelector("involvedObject.kind", "Bundle"), fields.OneTermEqualSelector("involvedObject.name", b.Name),
			fields.OneTermEqualSelector("involvedObject.uid", string(b.UID)),
		).String(),
	})
	if err != nil {
		return nil
	}
	slices.SortFunc(list.Items, func(x, y corev1.Event) int { return eventTime(x).Compare(eventTime(y)) })
	return list.Items[max(0, len(list.Items)-maxEvents):]
}

func eventTime(e corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if e.Series != nil {
		last = e.Series.LastObservedTime.Time
	}
	return slices.MaxFunc([]time.Time{last, e.EventTime.Time, e.FirstTimestamp.Time}, time.Time.Compare)
}

func (s *session) describeBundle(b *v1alpha1.Bundle, events []corev1.Event) error {
	w := tabwriter.NewWriter(s.Out, 0, 8, 2, ' ', 0)
	d := &description{w: w}
	st := s.stateOf(b)
	d.line("Name", b.Name)
	d.line("Namespace", b.Namespace)
	d.line("State", fmt.Sprintf("%s. %s", cmp.Or(b.Status.Phase, v1alpha1.BundlePending), st.words()))
	d.line("Class", b.Spec.ProvisionerClassName+d.more("provisioner", b.Status.Provisioner))
	d.source(b)
	d.content(b)
	d.attempt(b)
	d.text("Conditions:")
	for _, c := range b.Status.Conditions {
		d.text("  %s\t%s\t%s\t%s", c.Type, c.Status, age(c.LastTransitionTime), c.Reason+d.more("", d.once(c.Message)))
	}
	if len(events) > 0 {
		d.text("Events:")
	}
	for _, e := range events {
		d.text("  %s\t%s\t%s\t%s", age(metav1.NewTime(eventTime(e))), e.Type, e.Reason, d.once(e.Message))
	}
	if next := st.next(); len(next) > 0 {
		d.text("What to do next:")
		for _, line := range next {
			d.text("  %s", line)
		}
	}
	if d.err != nil {
		return d.err
	}
	return w.Flush()
}

// description writes lines, in columns that tabs separate, until one cannot be written.
type description struct {
	w    *tabwriter.Writer
	said strings.Builder // what was written
	err  error
}

// asAbove stands for a message that was written before.
const asAbove = "as above"

// longMessage is how many bytes a message has at least for which asAbove stands.
const longMessage = 40

// once is a message, or that it is one that was written before, as those of conditions and events often are.
func (d *description) once(message string) string {
	if len(message) >= longMessage && strings.Contains(d.said.String(), clean(message)) {
		return asAbove
	}
	return message
}

func (d *description) text(format string, args ...any) {
	for i, arg := range args {
		args[i] = clean(fmt.Sprint(arg))
	}
	fmt.Fprintf(&d.said, format+"\n", args...)
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format+"\n", args...)
	}
}

// line writes a name and a value, if there is one.
func (d *description) line(name, value string) {
	if strings.TrimSpace(value) != "" {
		d.text("%s:\t%s", name, value)
	}
}

// more is what stands behind a value, if there is something.
func (*description) more(name, value string) string {
	switch {
	case value == "":
		return ""
	case name == "":
		return ": " + value
	}
	return " (" + name + " " + value + ")"
}

func (d *description) source(b *v1alpha1.Bundle) {
	resolved := b.Status.ResolvedSource
	switch i := b.Spec.Source.Image; {
	case i != nil:
		path := ""
		if i.Path != "" && i.Path != "/" {
			path = ", path " + i.Path
		}
		d.line("Image", i.Reference+path)
		d.line("Platform", i.Platform)
		if resolved != nil && resolved.Image != nil {
			d.line("Unpacked from", cmp.Or(resolved.Image.Reference, "an image whose digest is not known"+d.more("", resolved.Image.Message))+d.more("platform", resolved.Image.Platform))
		}
		d.refresh(b)
	default:
		d.line("Source", string(b.Spec.Source.Type))
		if resolved != nil && resolved.Upload != nil {
			d.line("Written by", resolved.Upload.Username)
		}
	}
	d.line("Service account", b.Spec.ServiceAccountName)
	if b.Spec.Suspend {
		d.line("Suspended", "yes")
	}
}

// refresh tells of looking up what a tag names now.
func (d *description) refresh(b *v1alpha1.Bundle) {
	if seconds := b.Spec.RefreshIntervalSeconds; seconds != nil {
		d.line("Looked up", "every "+duration.HumanDuration(time.Duration(*seconds)*time.Second))
	}
	r := b.Status.Refresh
	if r == nil {
		return
	}
	if r.LastTime != nil {
		d.line("Last look", age(*r.LastTime)+" ago")
	}
	if r.Failures > 0 {
		d.line("Failed looks", fmt.Sprint(r.Failures))
	}
	d.line("Next look", in(r.NextTime))
	d.line("Refused image", r.Refused)
}

func (d *description) content(b *v1alpha1.Bundle) {
	c := b.Status.Content
	if c == nil {
		d.line("Content", "none")
		return
	}
	d.line("Content", c.Digest)
	d.line("Size", fmt.Sprintf("%s, %s, %s unpacked", bytesize.String(c.Size), plural(c.Files, "file"), bytesize.String(c.UncompressedSize)))
	d.line("Written", age(c.UpdateTime)+" ago")
	if c.Generation != b.Generation {
		d.line("Of", fmt.Sprintf("generation %d of the spec; the current one is %d", c.Generation, b.Generation))
	}
	if n := len(b.Status.History); n > 0 {
		d.line("Kept besides", plural(int64(n), "earlier content"))
	}
}

func (d *description) attempt(b *v1alpha1.Bundle) {
	u := b.Status.Unpack
	if u == nil {
		return
	}
	text := fmt.Sprintf("%d of generation %d", u.Attempt, u.Generation)
	if u.Mode != "" {
		text += ", mode " + string(u.Mode)
	}
	if u.Platform != "" {
		text += ", platform " + u.Platform
	}
	if u.Refresh {
		text += ", a refresh"
	}
	if u.StartTime != nil {
		text += ", began " + age(*u.StartTime) + " ago"
	}
	if u.EndTime != nil && u.StartTime != nil {
		text += ", took " + duration.HumanDuration(u.EndTime.Sub(u.StartTime.Time))
	}
	d.line("Attempt", text)
	d.line("Pod", u.PodName)
	if u.Failures > 0 {
		d.line("Failures", fmt.Sprint(u.Failures))
	}
	d.line("Next attempt", in(u.NextAttemptTime))
	if u.Reason != "" || u.Message != "" {
		d.line("It says", u.Reason+d.more("", u.Message))
	}
}

// age is how long ago something was.
func age(t metav1.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

// in is how long it is until something that is not yet due.
func in(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	if left := time.Until(t.Time); left > 0 {
		return "in " + duration.HumanDuration(left)
	}
	return ""
}
