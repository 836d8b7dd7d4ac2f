// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/scheme"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

type createOptions struct {
	*session
	print   *genericclioptions.PrintFlags
	image   string
	path    string
	pull    string
	from    string
	upload  bool
	class   string
	account string
	secrets []string
	labels  map[string]string
	dryRun  string
	wait    bool
	waiting waiting
}

// create makes a bundle.
func (s *session) create() *cobra.Command {
	o := &createOptions{session: s, print: genericclioptions.NewPrintFlags("created").WithTypeSetter(scheme.Scheme)}
	cmd := &cobra.Command{
		Use:   "create NAME (--image REFERENCE | --from FOLDER|ARCHIVE|- | --upload)",
		Short: "Make a bundle from an image, a folder or an archive",
		Example: `  # From an image, and wait until its content is there
  kubectl bundle create app --image registry.example/app@sha256:0123… --wait

  # From an image that somebody else pushes in the next hour
  kubectl bundle create app --image registry.example/app:1.4 --wait --patient --timeout 1h

  # A part of an image, pulled with a secret of the namespace
  kubectl bundle create app --image registry.example/app:1.4 --path /manifests --image-pull-secret regcred

  # From a folder on this machine
  kubectl bundle create mine --from ./folder --class raw

  # As YAML, to keep in git
  kubectl bundle create app --image registry.example/app:1.4 --dry-run=client -o yaml`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.print.AddFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.image, "image", "", "The image whose files are the content.")
	f.StringVar(&o.path, "path", "", "The absolute path in the image whose files are the content. All of it by default.")
	f.StringVar(&o.pull, "pull-policy", "", "Always, IfNotPresent or Never, as far as the class allows it.")
	f.StringVar(&o.from, "from", "", "The folder or archive that is the content; - for an archive on the standard input.")
	f.BoolVar(&o.upload, "upload", false, "Make a bundle whose content is written later, with push.")
	f.StringVar(&o.class, "class", "", "The ProvisionerClass. The default one if it is not given.")
	f.StringVar(&o.account, "service-account", "", "The service account whose pull secrets apply.")
	f.StringSliceVar(&o.secrets, "image-pull-secret", nil, "A secret of the namespace with which the image is pulled. May be repeated.")
	f.StringToStringVar(&o.labels, "label", nil, "Labels, as in: --label app=web,tier=front.")
	f.StringVar(&o.dryRun, "dry-run", "none", "none; client: print what would be sent; server: have it checked, and nothing kept.")
	f.BoolVar(&o.wait, "wait", false, "Wait until the content is there.")
	o.waiting.flags(cmd)
	s.completeClass(cmd)
	return cmd
}

func (o *createOptions) run(ctx context.Context, name string) error {
	name, err := parseName(name)
	if err != nil {
		return err
	}
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	if given := count(o.image != "", o.from != "", o.upload); given != 1 {
		return usage("one of --image, --from and --upload says where the content comes from, and not %d of them", given)
	}
	if o.image == "" && (o.path != "" || o.pull != "" || len(o.secrets) > 0) {
		return usage("--path, --pull-policy and --image-pull-secret are for --image")
	}
	if o.from != "" && o.from != "-" {
		// A bundle whose content cannot be read here would be left behind.
		if err := o.readable(); err != nil {
			return err
		}
	}
	b := o.bundle(name, namespace)
	switch o.dryRun {
	case "client":
		return o.show(b)
	case "none", "server":
	default:
		return usage("--dry-run is none, client or server, not %q", o.dryRun)
	}
	bundles, err := o.bundles()
	if err != nil {
		return err
	}
	if o.from != "" {
		// What is sent at once needs the class by now; an image can wait for it.
		if err := o.hasClass(ctx, o.class); err != nil {
			return err
		}
	}
	var opts metav1.CreateOptions
	if o.dryRun == "server" {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	b, err = bundles.Create(ctx, b, opts)
	if err != nil {
		return o.taken(ctx, bundles, name, err)
	}
	if err := o.show(b); err != nil || o.dryRun == "server" {
		return err
	}
	if o.from != "" {
		if err := o.session.upload(ctx, bundles, name, o.from, typed.UploadContentOptions{}); err != nil {
			return o.halfMade(ctx, name, err)
		}
	}
	if o.wait {
		return o.waitReady(ctx, bundles, name, o.waiting)
	}
	return nil
}

// readable looks at what is to be uploaded.
func (o *createOptions) readable() error {
	source, err := openArchive(o.from)
	if err != nil || source == nil {
		return err
	}
	return source.close()
}

// halfMade says what to do with a bundle whose content was not written.
func (o *createOptions) halfMade(ctx context.Context, name string, err error) error {
	p := o.explain(ctx, err)
	err = errors.New("the bundle was made, but its content was not written: " + p.Error())
	from := quoted(o.from)
	if o.from == "-" {
		from = "FOLDER"
	}
	at := o.where("")
	hint := fmt.Sprintf("%s push %s %s%s tries that again", program, name, from, at)
	if way := o.wayOut(p, name, from); way != "" {
		hint = way
	} else if p.code == ExitWrongContent {
		hint = fmt.Sprintf("mend the files, and then %s push %s %s%s; or kubectl delete bundle %s%s", program, name, from, at, name, at)
	}
	return fail(p.code, err, "%s", hint)
}

// count counts what is true.
func count(all ...bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

func (o *createOptions) bundle(name, namespace string) *v1alpha1.Bundle {
	b := &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: o.labels},
		Spec: v1alpha1.BundleSpec{
			ProvisionerClassName: o.class,
			ServiceAccountName:   o.account,
			Source:               v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload},
		},
	}
	for _, secret := range o.secrets {
		b.Spec.ImagePullSecrets = append(b.Spec.ImagePullSecrets, v1alpha1.LocalObjectReference{Name: secret})
	}
	if o.image != "" {
		b.Spec.Source = v1alpha1.BundleSource{
			Type:  v1alpha1.SourceTypeImage,
			Image: &v1alpha1.ImageSource{Reference: o.image, Path: o.path, PullPolicy: corev1.PullPolicy(o.pull)},
		}
	}
	return b
}

func (o *createOptions) show(b *v1alpha1.Bundle) error {
	if *o.print.OutputFormat == "" && o.quiet {
		return nil
	}
	if o.dryRun != "none" {
		if err := o.print.Complete("%s (" + o.dryRun + " dry run)"); err != nil {
			return err
		}
	}
	return o.printObject(o.print, b)
}

// printObject prints an object as its flags say.
func (s *session) printObject(flags *genericclioptions.PrintFlags, b *v1alpha1.Bundle) error {
	printer, err := flags.ToPrinter()
	if err != nil {
		return fail(ExitUsage, err, "")
	}
	if err := printer.PrintObj(b, s.output(*flags.OutputFormat)); err != nil {
		return fmt.Errorf("print bundle %q: %w", b.Name, err)
	}
	return nil
}
