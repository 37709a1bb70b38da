// The text of a PDF, page after page. What reads it is loaded with the first one.

const MOST_PAGES = 500;

/** Throws where there is no text, or where it is no PDF that can be read. */
export async function textOfPdf(file) {
  const pdf = await import("../vendor/pdf.min.mjs");
  pdf.GlobalWorkerOptions.workerSrc = "/page/vendor/pdf.worker.min.mjs";
  const loading = pdf.getDocument({ data: new Uint8Array(await file.arrayBuffer()), isEvalSupported: false });
  try {
    const read = await loading.promise.catch(({ name }) => {
      throw new Error(name === "PasswordException" ? `${file.name} asks for a password.` : `${file.name} is no PDF that can be read.`);
    });
    if (read.numPages > MOST_PAGES) throw new Error(`${file.name} has ${read.numPages} pages: at most ${MOST_PAGES} are read.`);
    const pages = [];
    for (let number = 1; number <= read.numPages; number += 1) pages.push(await textOfPage(await read.getPage(number)));
    const text = pages.join("\n\n").trim();
    if (text === "") throw new Error(`${file.name} has no text, only pictures of it.`);
    return text;
  } finally {
    loading.destroy();
  }
}

async function textOfPage(page) {
  const { items } = await page.getTextContent();
  return items.map(({ str, hasEOL }) => (hasEOL ? `${str}\n` : str)).join("");
}
